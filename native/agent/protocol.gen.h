/* Made from packages/wire/src/agent.ts by `npm run generate`. Do not edit. */
#pragma once

#define FK_VERSION 1
#define FK_SYNC_SIZE 64
#define FK_HEADER_SIZE 16
#define FK_MAX_PAYLOAD 16384
#define FK_MAX_REQUEST 1048576
#define FK_MAX_RESPONSE 4096
#define FK_INITIAL_WINDOW 262144
#define FK_MAX_REQUESTS 256
#define FK_PROCESS_RING 1048576
#define FK_SYNC_MAGIC { 0xf0, 0xd4, 0xc6, 0xa1, 0xe9, 0x7b, 0x4d, 0x2c, 0x8a, 0x5e, 0x13, 0xb7, 0x90, 0x5f, 0xfe, 0x21 }
#define FK_SYNC_REPLY_MAGIC { 0x0f, 0xb3, 0x9d, 0x5e, 0x41, 0xc8, 0x4a, 0x7a, 0xb6, 0xd2, 0x7e, 0xf8, 0x0c, 0x69, 0xa3, 0xd5 }

enum {
  FT_REQ = 1,
  FT_RES = 2,
  FT_DATA = 3,
  FT_ACK = 4,
  FT_EOF = 5,
  FT_GAP = 6,
  FT_RESET = 7,
  FT_DONE = 8,
  FT_FIN = 9,
  FT_RESUMED = 10,
  FT_PING = 11,
  FT_PONG = 12,
};

enum {
  RS_RECEIVING = 1,
  RS_RUNNING = 2,
  RS_ANSWERED = 3,
  RS_DONE = 4,
};

enum {
  V_HELLO = 1,
  V_SPAWN = 2,
  V_ATTACH = 3,
  V_PS = 4,
  V_SIGNAL = 5,
  V_RESIZE = 6,
  V_RELEASE = 7,
  V_READ = 8,
  V_WRITE = 9,
  V_STAT = 10,
  V_LIST = 11,
  V_MKDIR = 12,
  V_RENAME = 13,
  V_REMOVE = 14,
  V_SYMLINK = 15,
  V_SETATTR = 16,
  V_WATCH = 17,
  V_DIAL = 18,
  V_METRICS = 19,
  V_SET_TIME = 20,
  V_ADD_ENTROPY = 21,
  V_SET_HOSTNAME = 22,
  V_FREEZE = 23,
  V_THAW = 24,
  V_SYNC_DISKS = 25,
  V_POWEROFF = 26,
};

enum {
  F_MESSAGE = 1,
  F_GENERATION = 2,
  F_ENTROPY = 3,
  F_WALL_CLOCK = 4,
  F_HOSTNAME = 5,
  F_MACHINE_ID = 6,
  F_ENV = 7,
  F_METADATA = 8,
  F_THAW = 9,
  F_PROTOCOL = 10,
  F_MONOTONIC = 11,
  F_TOOK = 12,
  F_HOOK = 13,
  F_ARG = 14,
  F_SHELL = 15,
  F_CWD = 16,
  F_USER = 17,
  F_ROWS = 18,
  F_COLS = 19,
  F_STDIN = 20,
  F_TIMEOUT = 21,
  F_ROLE = 22,
  F_LABEL = 23,
  F_HANDLE = 24,
  F_PID = 25,
  F_PTY = 26,
  F_FROM = 27,
  F_LOSSLESS = 28,
  F_SIGNAL = 29,
  F_ALL = 30,
  F_CANCEL = 31,
  F_PATH = 32,
  F_PATH2 = 33,
  F_OFFSET = 34,
  F_LENGTH = 35,
  F_MODE = 36,
  F_UID = 37,
  F_GID = 38,
  F_MKDIRS = 39,
  F_FOLLOW = 40,
  F_PARENTS = 41,
  F_REPLACE = 42,
  F_RECURSIVE = 43,
  F_FORCE = 44,
  F_MTIME = 45,
  F_INFO = 46,
  F_TARGET = 47,
  F_NAME = 48,
  F_EVENT = 49,
  F_DIRECTORY = 50,
  F_COOKIE = 51,
  F_PORT = 52,
  F_OUTCOME = 53,
  F_USAGE = 54,
  F_STATE = 55,
  F_AGE = 56,
  F_METRICS = 57,
  F_LANGUAGE = 58,
};

enum {
  OUTCOME_EXITED = 0,
  OUTCOME_SIGNALED = 1,
  OUTCOME_TIMEOUT = 2,
  OUTCOME_OOM = 3,
  OUTCOME_CANCELLED = 4,
};

enum {
  WATCH_CREATED = 1,
  WATCH_MODIFIED = 2,
  WATCH_REMOVED = 3,
  WATCH_ATTRIBUTES = 4,
  WATCH_MOVED_FROM = 5,
  WATCH_MOVED_TO = 6,
  WATCH_OVERFLOW = 7,
  WATCH_GONE = 8,
};

enum {
  ST_OK = 0,
  ST_NOT_FOUND = 1,
  ST_PERMISSION = 2,
  ST_NOT_EXECUTABLE = 3,
  ST_NOT_A_DIRECTORY = 4,
  ST_IS_A_DIRECTORY = 5,
  ST_EXISTS = 6,
  ST_NOT_EMPTY = 7,
  ST_NO_SPACE = 8,
  ST_READ_ONLY = 9,
  ST_TOO_LARGE = 10,
  ST_TOO_LONG = 11,
  ST_BUSY = 12,
  ST_INVALID = 13,
  ST_UNSUPPORTED = 14,
  ST_NO_SUCH_USER = 15,
  ST_NO_SUCH_PROCESS = 16,
  ST_REFUSED = 17,
  ST_LOOP = 18,
  ST_TIMEOUT = 19,
  ST_NO_MEMORY = 20,
  ST_IO = 21,
  ST_CLOSED = 22,
  ST_CANCELLED = 23,
};

