/** What every guest's kernel is told, whatever runs it. */
export const COMMAND_LINE = [
  'console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off',
  // tracefs makes 10,000 inodes at boot: 10 MiB, and time under emulation. Machines on kvm have no RTC, whose driver then asks for it 10,000
  // times, 0.1 ms apart: a second on hardware, 40,000 exits of the VM where kvm is emulated. The clock is set by hello.
  'initcall_blacklist=tracer_init_tracefs,cmos_init',
  // Pressure accounting and the profiles of AppArmor and TOMOYO cost each context switch and each open, and nobody here reads or loads them.
  'psi=0 lsm=landlock,yama',
].join(' ');
