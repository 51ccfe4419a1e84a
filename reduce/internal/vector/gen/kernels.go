package main

// A kernel is one function: its name, its operator, the types of package tensor that it serves,
// and the code that builds it.
type kernel struct {
	name  string
	op    string
	types []string
	build builder
}

// at returns the level whose function level l uses for this kernel. For minloc and maxloc it is
// always AVX2.
func (k kernel) at(l level) level {
	if k.op == "minloc" || k.op == "maxloc" {
		return avx2
	}
	return l
}

// In two's complement, most operations give the same bits for a signed and an unsigned type. One
// function then serves both types.
var (
	every8  = []string{"Int8", "Uint8"}
	every16 = []string{"Int16", "Uint16"}
	every32 = []string{"Int32", "Uint32"}
	every64 = []string{"Int64", "Uint64"}

	integers = []string{"Int8", "Int16", "Int32", "Int64", "Uint8", "Uint16", "Uint32", "Uint64"}
	bytes8   = []string{"Int8", "Uint8", "Bool"}

	// The two parts of a complex number are summed and divided separately, so complex types use the
	// functions for their parts.
	singles = []string{"Float32", "Complex64"}
	doubles = []string{"Float64", "Complex128"}
	halves  = []string{"F16"}
	brains  = []string{"BF16"}
)

// folds lists every kernel except those of minloc and maxloc, which are in loc.go.
var folds = append([]kernel{
	{"SumInt8", "sum", every8, lanewise(addInt(8))},
	{"SumInt16", "sum", every16, lanewise(addInt(16))},
	{"SumInt32", "sum", every32, lanewise(addInt(32))},
	{"SumInt64", "sum", every64, lanewise(addInt(64))},
	{"SumFloat32", "sum", singles, lanewise(addFloat(32))},
	{"SumFloat64", "sum", doubles, lanewise(addFloat(64))},
	{"SumFloat16", "sum", halves, float16(addFloat(32), (*vec).carefulIfNaNClings)},
	{"SumBFloat16", "sum", brains, bfloat16(addFloat(32), (*vec).carefulIfNaNClings)},

	{"ProdInt8", "prod", every8, mulInt8},
	{"ProdInt16", "prod", every16, lanewise(mulInt(16))},
	{"ProdInt32", "prod", every32, lanewise(mulInt(32))},
	{"ProdInt64", "prod", every64, lanewise(mulInt(64))},
	{"ProdFloat32", "prod", []string{"Float32"}, lanewise(mulFloat(32))},
	{"ProdFloat64", "prod", []string{"Float64"}, lanewise(mulFloat(64))},
	{"ProdFloat16", "prod", halves, float16(mulFloat(32), (*vec).carefulIfNaN)},
	{"ProdBFloat16", "prod", brains, bfloat16(mulFloat(32), (*vec).carefulIfNaN)},
	{"ProdComplex64", "prod", []string{"Complex64"}, mulComplex64},
	{"ProdComplex128", "prod", []string{"Complex128"}, mulComplex128},

	{"MinInt8", "min", []string{"Int8"}, lanewise(minSigned(8))},
	{"MinInt16", "min", []string{"Int16"}, lanewise(minSigned(16))},
	{"MinInt32", "min", []string{"Int32"}, lanewise(minSigned(32))},
	{"MinInt64", "min", []string{"Int64"}, extremeInt64{min: true, signed: true}.build},
	{"MinUint8", "min", []string{"Uint8"}, lanewise(minUnsigned(8))},
	{"MinUint16", "min", []string{"Uint16"}, lanewise(minUnsigned(16))},
	{"MinUint32", "min", []string{"Uint32"}, lanewise(minUnsigned(32))},
	{"MinUint64", "min", []string{"Uint64"}, extremeInt64{min: true}.build},
	{"MinFloat32", "min", []string{"Float32"}, minFloat(32)},
	{"MinFloat64", "min", []string{"Float64"}, minFloat(64)},
	{"MinFloat16", "min", halves, minHalf(binary16)},
	{"MinBFloat16", "min", brains, minHalf(brain16)},

	{"MaxInt8", "max", []string{"Int8"}, lanewise(maxSigned(8))},
	{"MaxInt16", "max", []string{"Int16"}, lanewise(maxSigned(16))},
	{"MaxInt32", "max", []string{"Int32"}, lanewise(maxSigned(32))},
	{"MaxInt64", "max", []string{"Int64"}, extremeInt64{signed: true}.build},
	{"MaxUint8", "max", []string{"Uint8"}, lanewise(maxUnsigned(8))},
	{"MaxUint16", "max", []string{"Uint16"}, lanewise(maxUnsigned(16))},
	{"MaxUint32", "max", []string{"Uint32"}, lanewise(maxUnsigned(32))},
	{"MaxUint64", "max", []string{"Uint64"}, extremeInt64{}.build},
	{"MaxFloat32", "max", []string{"Float32"}, maxFloat(32)},
	{"MaxFloat64", "max", []string{"Float64"}, maxFloat(64)},
	{"MaxFloat16", "max", halves, maxHalf(binary16)},
	{"MaxBFloat16", "max", brains, maxHalf(brain16)},

	{"LogicalAnd8", "logical_and", bytes8, logicalAnd(8)},
	{"LogicalAnd16", "logical_and", every16, logicalAnd(16)},
	{"LogicalAnd32", "logical_and", every32, logicalAnd(32)},
	{"LogicalAnd64", "logical_and", every64, logicalAnd(64)},
	{"LogicalOr8", "logical_or", bytes8, logicalOr(8)},
	{"LogicalOr16", "logical_or", every16, logicalOr(16)},
	{"LogicalOr32", "logical_or", every32, logicalOr(32)},
	{"LogicalOr64", "logical_or", every64, logicalOr(64)},
	{"LogicalXor8", "logical_xor", bytes8, logicalXor(8)},
	{"LogicalXor16", "logical_xor", every16, logicalXor(16)},
	{"LogicalXor32", "logical_xor", every32, logicalXor(32)},
	{"LogicalXor64", "logical_xor", every64, logicalXor(64)},

	{"BitAnd", "bit_and", integers, lanewise((*vec).and)},
	{"BitOr", "bit_or", integers, lanewise((*vec).or)},
	{"BitXor", "bit_xor", integers, lanewise((*vec).xor)},
}, locs()...)

// divisions lists the kernels that divide the sum of a mean.
var divisions = []kernel{
	{"DivideFloat32", "", singles, divideFloat32},
	{"DivideFloat64", "", doubles, divideFloat64},
	{"DivideFloat16", "", halves, divideFloat16},
	{"DivideBFloat16", "", brains, divideBFloat16},
}

// A pair combines two vectors into a new one.
type pair func(v *vec, a, b value) value

// lanewise returns the builder of a kernel that applies p and needs no constants.
func lanewise(p pair) builder {
	return func(v *vec) step {
		return func(args ...value) value { return p(v, args[0], args[1]) }
	}
}
