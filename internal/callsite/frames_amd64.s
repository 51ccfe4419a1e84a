#include "textflag.h"

// func framePCs(pcs *[depth]uintptr) int
//
// Go keeps a frame pointer in BP: it points at the caller's saved one, with the
// return address above it. The chain ends with nil at the goroutine's start.
TEXT ·framePCs(SB), NOSPLIT|NOFRAME, $0-16
	MOVQ pcs+0(FP), DI
	MOVQ BP, AX
	XORQ CX, CX

next:
	TESTQ AX, AX
	JZ    done
	MOVQ  8(AX), BX
	MOVQ  BX, (DI)(CX*8)
	INCQ  CX
	CMPQ  CX, $10
	JGE   done
	MOVQ  (AX), AX
	JMP   next

done:
	MOVQ CX, ret+8(FP)
	RET
