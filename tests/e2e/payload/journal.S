# The guest of tests/e2e/harness/journal.rs: a boot sector that appends a record to the second disk at every tick of its
# clock (18.2 a second), each in a block of its own. What a record holds and why two writers cannot hide is told there.
#
# A block is 4096 bytes: QEMU makes a reading and a writing of anything smaller, where the host's storage has such blocks.
# It looks at each block one tick before it writes it. One that somebody else has written is left alone, counted, and the
# next free one taken.

        .intel_syntax noprefix
        .code16
        .globl _start

        .set READ, 0x42                 # int 13h extensions: AH, packet at DS:SI
        .set WRITE, 0x43
        .set DISK, 0x81                 # the second disk
        .set BLOCK, 8                   # sectors
        .set AT_ONCE, 8 * BLOCK         # read by one call while looking for the end
        .set GAP, 4 * BLOCK             # left free before the first record of a run
        .set RECORD, 0x1000             # one block
        .set LOOK, 0x8000               # AT_ONCE

_start: ljmp    0, offset start

        .org    8
magic:  .ascii  "LHJ1"
owner:  .long   0                       # the harness writes these three before each start
epoch:  .long   0
run:    .long   0
count:  .long   0
clash:  .long   0                       # blocks found taken
        .long   0, 0

sectors: .word  AT_ONCE
packet: .byte   16, 0
many:   .word   0                       # after a failure: how many were moved
buffer: .word   LOOK, 0
sector: .long   0, 0

start:  xor     ax, ax
        mov     ds, ax
        mov     es, ax
        mov     ss, ax
        mov     sp, 0x7c00
        cld
        xor     ebp, ebp                # behind the last record

        # The end: whoever left a gap left less than AT_ONCE.
scan:   mov     ah, READ
        call    disk
        jc      scan
        mov     eax, dword ptr [sector]
        mov     bx, LOOK
        xor     edx, edx                # found something
1:      add     eax, BLOCK
        cmp     dword ptr [bx], 0
        je      2f
        mov     ebp, eax
        inc     dx
2:      add     bx, 512 * BLOCK
        jnz     1b                      # LOOK and AT_ONCE are 64 KiB
        mov     dword ptr [sector], eax
        test    dx, dx
        jnz     scan
        add     ebp, GAP
        mov     dword ptr [sector], ebp
        mov     word ptr [sectors], BLOCK

look:   mov     ah, READ
        call    disk
        jc      later
        mov     si, offset magic
        mov     di, LOOK
        cmp     dword ptr [di], 0
        je      tick
        mov     cx, 8
        repe    cmpsd
        je      next                    # a write that was reported as failed had landed
        inc     dword ptr [clash]
        add     dword ptr [sector], BLOCK
        jmp     look
later:  sti
        hlt
        jmp     look

        # The tick begins with the write, so that whatever stops the guest stops it there.
tick:   sti
        hlt
        mov     di, RECORD
        mov     dx, 512 * BLOCK / 32    # all of it: a torn one shows
3:      mov     si, offset magic
        mov     cx, 8
        rep     movsd
        dec     dx
        jnz     3b
        mov     word ptr [buffer], RECORD
        mov     ax, WRITE << 8
        call    disk
        mov     word ptr [buffer], LOOK
        jc      later
next:   inc     dword ptr [count]
        add     dword ptr [sector], BLOCK
        jmp     look

disk:   mov     cx, word ptr [sectors]
        mov     word ptr [many], cx
        mov     dl, DISK
        mov     si, offset packet
        int     0x13
        ret

        .org    510
        .word   0xaa55
