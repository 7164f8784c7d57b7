/* `forkd-shim --tsc`. */
#pragma once
int tsc_main(void);
