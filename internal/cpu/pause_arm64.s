#include "textflag.h"

// func Pause()
TEXT ·Pause(SB), NOSPLIT|NOFRAME, $0-0
	WORD $0xd5033fdf // ISB SY: most cores take YIELD for no instruction at all, and this stops them for about as long as PAUSE
	RET
