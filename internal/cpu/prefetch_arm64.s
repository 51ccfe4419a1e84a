#include "textflag.h"

// func PrefetchWrite(p *uint64)
TEXT ·PrefetchWrite(SB), NOSPLIT|NOFRAME, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PSTL1KEEP
	RET

// func PrefetchRead(p *uint64)
TEXT ·PrefetchRead(SB), NOSPLIT|NOFRAME, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET
