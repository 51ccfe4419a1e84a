#include "textflag.h"

// func PrefetchWrite(p *uint64)
TEXT ·PrefetchWrite(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ p+0(FP), AX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08 // PREFETCHW (AX), which processors without it skip
	RET

// func PrefetchRead(p *uint64)
TEXT ·PrefetchRead(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET
