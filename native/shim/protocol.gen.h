/* Made from packages/wire/src/shim.ts. Do not edit. */
#pragma once

#define SHIM_VERSION 2
#define SHIM_HEADER_SIZE 16
#define SHIM_MAX_PAYLOAD 16777216
#define SHIM_REPLY 128

enum {
  SF_START = 1,
  SF_ADOPT = 2,
  SF_HELLO = 3,
  SF_FIND_RAM = 4,
  SF_GRAFT = 5,
  SF_ARM = 6,
  SF_DISARM = 7,
  SF_KILL = 8,
  SF_END = 9,
  SF_EXITED = 10,
  SF_CAPTURE_PREPARE = 11,
  SF_CAPTURE_FREEZE = 12,
  SF_CAPTURE_COPY = 13,
  SF_CAPTURE_ABORT = 14,
};

enum {
  START_USER = 1,
  START_ABILITIES = 2,
  START_MAPS_ALLOWED = 4,
  START_OWN_KVM = 8,
};

enum {
  CAN_INJECTION = 1,
  CAN_CHANGE_USER = 2,
  CAN_ATTACH = 4,
};

enum {
  SPEAKS_LINES = 0,
  SPEAKS_HTTP = 1,
};

enum {
  STEP_COMMAND = 0,
  STEP_COPY = 1,
};

enum {
  EXTENT_MAP = 0,
  EXTENT_COPY = 1,
  EXTENT_ZERO = 2,
};

enum {
  EXIT_EXITED = 0,
  EXIT_SIGNALED = 1,
  EXIT_UNKNOWN = 2,
};

