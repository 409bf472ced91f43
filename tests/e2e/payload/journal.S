# The guest of tests/e2e/harness/journal.rs: a boot sector that appends a record to the second disk at every tick of its
# clock, each in a sector of its own. What a record holds and why two writers cannot hide is told there.
#
# It looks at a sector before it writes it. One that somebody else has written meanwhile is left alone, counted, and the
# next free one taken: nothing that shows two writers is ever destroyed by one of them.

        .intel_syntax noprefix
        .code16
        .globl _start

        .set READ, 0x42                 # int 13h extensions: AH, packet at DS:SI
        .set WRITE, 0x43
        .set DISK, 0x81                 # the second disk
        .set AT_ONCE, 64                # sectors read by one call while looking for the end
        .set GAP, 8                     # sectors left free before the first record of a run
        .set PERIOD, 23864              # of the timer's 1193182 Hz: 20 ms
        .set RECORD, 0x7e00             # one sector
        .set LOOK, 0x8000               # AT_ONCE sectors

_start: ljmp    0, offset start

        .org    8
magic:  .ascii  "LHJ1"
owner:  .long   0                       # the harness writes these three before each start
epoch:  .long   0
run:    .long   0
count:  .long   0
clash:  .long   0                       # sectors found taken
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

        # The end: whoever left a gap left less than AT_ONCE sectors.
scan:   mov     ah, READ
        call    disk
        jc      scan
        mov     eax, dword ptr [sector]
        mov     bx, LOOK
        xor     edx, edx                # found something
1:      inc     eax
        cmp     dword ptr [bx], 0
        je      2f
        mov     ebp, eax
        inc     dx
2:      add     bx, 512
        jnz     1b                      # LOOK + 64 sectors is 64 KiB
        mov     dword ptr [sector], eax
        test    dx, dx
        jnz     scan
        add     ebp, GAP
        mov     dword ptr [sector], ebp
        mov     word ptr [sectors], 1

        mov     al, 0x34                # counter 0, both bytes, rate generator
        out     0x43, al
        mov     al, PERIOD & 0xff
        out     0x40, al
        mov     al, PERIOD >> 8
        out     0x40, al

tick:   sti
        hlt
again:  mov     ah, READ
        call    disk
        jc      tick
        mov     si, offset magic
        mov     di, LOOK
        cmp     dword ptr [di], 0
        je      append
        mov     cx, 8
        repe    cmpsd
        je      next                    # a write that was reported as failed had landed
        inc     dword ptr [clash]
        inc     dword ptr [sector]
        jmp     again

append: mov     di, RECORD
        mov     dx, 16                  # the whole sector: a torn one shows
3:      mov     si, offset magic
        mov     cx, 8
        rep     movsd
        dec     dx
        jnz     3b
        mov     word ptr [buffer], RECORD
        mov     ax, WRITE << 8
        call    disk
        mov     word ptr [buffer], LOOK
        jc      tick
next:   inc     dword ptr [count]
        inc     dword ptr [sector]
        jmp     tick

disk:   mov     cx, word ptr [sectors]
        mov     word ptr [many], cx
        mov     dl, DISK
        mov     si, offset packet
        int     0x13
        ret

        .org    510
        .word   0xaa55
