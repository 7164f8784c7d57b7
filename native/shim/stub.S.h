/*
 * The stub: what a borrowed thread executes. It is copied over the vdso's section headers and the padding after them, which nothing reads at
 * run time, so that no memory has to be made first and the target's own code stays whole. Its end puts every register back as it was and
 * goes on where the thread had been: a target whose tracer dies finds its way home alone. Only general registers and flags change in
 * between; a system call leaves the others.
 */
#pragma once

/* What the tracer fills in, at the stub's end. Order as in the assembly below. */
struct stub_state {
  uint64_t flags_at; /* where the saved flags lie, below the stack's red zone */
  uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rsp, rip;
};

extern const uint8_t stub_begin[], stub_called[], stub_clone[], stub_cloned[], stub_batch[], stub_state[], stub_end[];

#define RESTORE(reg, index) "  mov stub_state+8*" #index "(%rip), %" #reg "\n"
__asm__(
    ".pushsection .rodata\n"
    ".balign 16\n"
    "stub_begin:\n" /* one call, its registers set by the tracer */
    "  syscall\n"
    "stub_called:\n"
    "stub_restore:\n"
    RESTORE(rsp, 0)
    "  popfq\n"
    RESTORE(rax, 1) RESTORE(rbx, 2) RESTORE(rcx, 3) RESTORE(rdx, 4) RESTORE(rsi, 5) RESTORE(rdi, 6) RESTORE(rbp, 7)
    RESTORE(r8, 8) RESTORE(r9, 9) RESTORE(r10, 10) RESTORE(r11, 11) RESTORE(r12, 12) RESTORE(r13, 13)
    RESTORE(r14, 14) RESTORE(r15, 15) RESTORE(rsp, 16)
    "  jmp *stub_state+8*17(%rip)\n"
    "stub_clone:\n" /* the clone has rax 0 and no stack: it must not live */
    "  syscall\n"
    "stub_cloned:\n"
    "  test %rax, %rax\n"
    "  jnz stub_restore\n"
    "  ud2\n"
    "stub_batch:\n" /* rbx: struct call, one after another */
    "  mov (%rbx), %rax\n"
    "  cmp $-1, %rax\n"
    "  je stub_restore\n"
    "  mov 8(%rbx), %rdi\n"
    "  mov 16(%rbx), %rsi\n"
    "  mov 24(%rbx), %rdx\n"
    "  mov 32(%rbx), %r10\n"
    "  mov 40(%rbx), %r8\n"
    "  mov 48(%rbx), %r9\n"
    "  syscall\n"
    "  mov %rax, 56(%rbx)\n"
    "  add $64, %rbx\n"
    "  jmp stub_batch\n"
    ".balign 8\n"
    "stub_state:\n"
    "  .fill 18, 8, 0\n"
    "stub_end:\n"
    ".popsection\n");
#undef RESTORE
