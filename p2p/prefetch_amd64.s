#include "textflag.h"

// func fetchToWrite(p *uint64)
TEXT ·fetchToWrite(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ p+0(FP), AX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08 // PREFETCHW (AX), which processors without it skip
	RET

// func fetchToRead(p *uint64)
TEXT ·fetchToRead(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET
