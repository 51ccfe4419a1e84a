#include "textflag.h"

// func framePCs(pcs *[depth]uintptr) int
//
// Go keeps a frame pointer in R29: it points at the caller's saved one, with the
// return address above it. The chain ends with nil at the goroutine's start.
TEXT ·framePCs(SB), NOSPLIT|NOFRAME, $0-16
	MOVD pcs+0(FP), R0
	MOVD R29, R1
	MOVD $0, R2

next:
	CBZ  R1, done
	MOVD 8(R1), R3
	MOVD R3, (R0)(R2<<3)
	ADD  $1, R2
	CMP  $10, R2
	BGE  done
	MOVD (R1), R1
	B    next

done:
	MOVD R2, ret+8(FP)
	RET
