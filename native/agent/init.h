/* Parts of a guest's start, in the order of init.c. All stop the machine where they cannot go on. */
#pragma once
#include "agent.h"

/* One line on the console that says what and why, then the end of the machine. */
_Noreturn void init_cannot(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- devices.c */
/* Hears of devices from here on; what is there already is found by looking. */
void devices_listen(void);
/* Loads what /modules.list names, one path a line, in that order. */
void devices_load_modules(void);
/* Finds the image (squashfs) and the writable disk (ext4) by what is on them: their order varies. */
void devices_find_disks(char image[32], char disk[32]);
/* Path of the virtio-serial port named "agent", or NULL when `deadline_ms` passes or vsock is there instead. */
const char *devices_agent_port(uint64_t deadline_ms);
bool devices_have_vsock(void);
void devices_quiet(void); /* stops listening */

/* ---- mounts.c */
/* proc, sys, dev: of the initramfs. And a console for what goes wrong. */
void mounts_first(void);
/* Image and disk under overlayfs, at /root. */
void mounts_overlay(const char *image, const char *disk);
/* What a system expects below a root, then that root becomes /, and the initramfs is emptied. */
void mounts_enter(void);
/* The files that say who a machine is, on tmpfs: a hello writes them at each fork, and must not wait for a disk. */
void mounts_identity(void);
