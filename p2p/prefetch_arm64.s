#include "textflag.h"

// func fetchToWrite(p *uint64)
TEXT ·fetchToWrite(SB), NOSPLIT|NOFRAME, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PSTL1KEEP
	RET

// func fetchToRead(p *uint64)
TEXT ·fetchToRead(SB), NOSPLIT|NOFRAME, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET
