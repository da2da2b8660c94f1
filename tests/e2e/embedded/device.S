/* The output of clang for a translation unit with device code: the bundle, and the wrapper that points
 * to it. Assembled once for each unit, with UNIT and BUNDLE defined. */

    .section .hip_fatbin, "a", @progbits
    .p2align 12
bundle:
    .incbin BUNDLE

    .section .hipFatBinSegment, "aw", @progbits
    .p2align 3
    .hidden UNIT
    .globl UNIT
UNIT:
    .long 0x48495046, 1
    .quad bundle, 0

    .section .note.GNU-stack, "", @progbits
