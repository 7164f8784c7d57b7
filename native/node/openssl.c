/* A Node add-on: OpenSSL draws its random numbers from the kernel, each time.
 *
 * OpenSSL's generators keep their state in memory, which a fork of the machine copies: children would make the same TLS randoms and
 * keys. The kernel's generator is told of every fork before anything else runs, so a method that keeps nothing is right at once, in all
 * threads, with nothing to be seeded anew.
 *
 * Linked with no library: what it takes of Node and of OpenSSL, which is Node's own or the system's, is found in the process that loads
 * it, whichever C library that has. So the few declarations are here, as their documentation has them. */
#include <stdbool.h>
#include <stddef.h>

typedef struct napi_env__ *napi_env;
typedef struct napi_value__ *napi_value;

int napi_get_boolean(napi_env env, bool value, napi_value *result);
int napi_set_named_property(napi_env env, napi_value object, const char *name, napi_value value);

struct rand_method {
  int (*seed)(const void *bytes, int size);
  int (*bytes)(unsigned char *to, int size);
  void (*cleanup)(void);
  int (*add)(const void *bytes, int size, double entropy);
  int (*pseudorand)(unsigned char *to, int size);
  int (*status)(void);
};

/* Not there where Node hides its OpenSSL, or has one without methods. */
__attribute__((weak)) int RAND_set_rand_method(const struct rand_method *method);

enum { SYS_GETRANDOM = 318, EINTR = 4 };

static long getrandom(unsigned char *to, size_t size) {
  long result;
  register long flags __asm__("rdx") = 0;
  __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_GETRANDOM), "D"(to), "S"(size), "r"(flags) : "rcx", "r11", "memory");
  return result;
}

static int draw(unsigned char *to, int size) {
  for (size_t left = size < 0 ? 0 : (size_t)size; left > 0;) {
    long n = getrandom(to, left);
    if (n == -EINTR) continue;
    if (n <= 0) return 0;
    to += n;
    left -= (size_t)n;
  }
  return size >= 0;
}

/* What is mixed in is not needed: the kernel has better. */
static int seed(const void *bytes, int size) {
  (void)bytes;
  (void)size;
  return 1;
}

static int add(const void *bytes, int size, double entropy) {
  (void)entropy;
  return seed(bytes, size);
}

static int status(void) {
  return 1;
}

static const struct rand_method kernel = {.seed = seed, .bytes = draw, .add = add, .pseudorand = draw, .status = status};

/* Sets exports.installed: whether OpenSSL has taken it. */
__attribute__((visibility("default"))) napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  bool installed = RAND_set_rand_method != NULL && RAND_set_rand_method(&kernel) == 1;
  napi_value value;
  if (napi_get_boolean(env, installed, &value) == 0) napi_set_named_property(env, exports, "installed", value);
  return exports;
}
