/*
 * What slots.c (requests, as verbs see them), session.c (frames from the host), send.c (frames to the host) and conn.c (the
 * transport) share. Nobody else includes it.
 */
#pragma once
#include "agent.h"

/* Some slots beyond the limit, so that "busy" is an answer that survives a break of the connection, as any other. */
#define SLOTS (FK_MAX_REQUESTS + 32)
/* As large as the window: a host may acknowledge as late as its window allows, and bytes are kept until it does. */
#define SLOT_RING FK_INITIAL_WINDOW
/* Largest DATA frame, header included: two fill what virtio-serial takes at once (32 KiB). */
#define DATA_FRAME 16384

/* Channel 1 or 2, guest to host. */
struct channel {
  struct ring *ring;  /* `own`, or somebody else's; NULL: cut off, or not open */
  struct ring own;
  uint64_t start;     /* what lies before was never this channel's: told as a gap */
  uint64_t sent;      /* next offset to send */
  uint64_t high;      /* most that was ever sent: the host cannot acknowledge more */
  uint64_t acked;     /* the host has all before */
  uint64_t limit;     /* the host takes all before */
  uint64_t end;       /* final offset, when `ended` */
  bool open, ended, eof_sent;
  bool await;         /* after a resume: hold until the host has said what it received */
};

struct slot {
  uint32_t id;        /* 0: free */
  uint8_t state;      /* RS_* */
  bool refused;       /* answered "busy" without a look at it */
  bool failed;        /* RES is an error: no channels, no DONE */
  bool opened;        /* has channels, so DONE will follow RES */
  bool resetting;     /* the host wants no more output */
  bool reset_told;    /* ops->reset was called, or stood in for */
  bool res_due, res_sent, done_sent;
  bool input_open;    /* before RES: perhaps; after it: the verb has channel 0 */
  bool input_eof;
  bool ack_due;       /* tell received and limit although little changed */
  bool input_news;    /* ops->input is due */
  uint8_t room_news;  /* ops->writable is due, bit per channel */
  uint16_t res_size, done_size;
  uint64_t told_received, told_limit;
  struct ring in;
  struct channel out[2];
  const struct slot_ops *ops;
  void *context;
};

extern struct slot slots[SLOTS];
/* Payloads of RES and DONE, kept until FIN. Apart from the table, so that a scan of it touches few pages. */
extern uint8_t slot_res[SLOTS][FK_MAX_RESPONSE];
extern uint8_t slot_done_payload[SLOTS][FK_MAX_RESPONSE];

static inline void put16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)v; p[1] = (uint8_t)(v >> 8); }
static inline void put32(uint8_t *p, uint32_t v) { for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (8 * i)); }
static inline void put64(uint8_t *p, uint64_t v) { for (int i = 0; i < 8; i++) p[i] = (uint8_t)(v >> (8 * i)); }
static inline uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t get32(const uint8_t *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) | (uint64_t)get32(p + 4) << 32; }

/* Where SYNC's magic begins in these bytes, or NULL. */
const uint8_t *find_magic(const uint8_t *bytes, size_t length);

/* ---- slots.c */
void slots_init(void);
/* A free slot for a request id; `refused` takes one of those kept for "busy". NULL: none. */
struct slot *slot_take(uint32_t id, bool refused);
struct slot *slot_by_id(uint32_t id);
/* Lets the verb release everything, then frees the slot. */
void slot_free(struct slot *s);
/* After a reset by the host: calls ops->reset once there is one, or ends an answered request that has none. */
void slot_tell_reset(struct slot *s);
/* Returns whole pages to the kernel; they read as zero from then on. */
void give_back(void *pages, size_t length);

/* ---- session.c */
/* SYNC came: true when the session was known and goes on. */
bool session_sync(const uint8_t id[16]);
/* The transport broke; and it is whole after all. */
void session_gone(void);
void session_back(void);
/* One frame with a checked header. False: the host broke the rules; nothing is believed until its next SYNC. */
bool session_frame(uint8_t type, uint8_t sub, uint32_t id, const uint8_t *payload, uint32_t length);
/* Calls the input and writable operations that are due. */
void session_notify(void);
/* Payload of RESUMED. Returns its size. */
size_t session_resumed(uint8_t *to);
uint64_t session_count(void);
void session_news(void);

/* ---- send.c */
void send_mark(const struct slot *s); /* the slot may have something to send */
void send_forget_pongs(void);
void send_pong(const uint8_t bytes[8]);
/* Writes the next frame of the session; 0: nothing to send. `to` has room for DATA_FRAME + 64 bytes. */
size_t send_next(uint8_t *to);
