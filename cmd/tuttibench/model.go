package main

import (
	"fmt"
	"slices"
)

// A param is one parameter tensor of a model, and so one gradient.
type param struct {
	name  string
	count int // number of elements
}

// models returns the names that -model accepts.
func models() []string { return []string{"resnet50", "vgg16", "bert-base", "small1000"} }

// paramsOf returns a model's tensors in the order of the forward pass. For an unknown model it
// returns none.
func paramsOf(model string) []param {
	var l params
	switch model {
	case "resnet50":
		l.resnet50()
	case "vgg16":
		l.vgg16()
	case "bert-base":
		l.bertBase()
	case "small1000":
		for i := range 1000 {
			l.add(fmt.Sprintf("tensor%d", i), 1<<10/4)
		}
	}
	return l
}

type params []param

// add appends a tensor by its dimensions.
func (l *params) add(name string, dims ...int) {
	count := 1
	for _, d := range dims {
		count *= d
	}
	*l = append(*l, param{name, count})
}

// pair adds the two tensors of a layer: its weights and its bias, or the scale and the shift of a
// normalization.
func (l *params) pair(name string, out int, rest ...int) {
	l.add(name+".weight", append([]int{out}, rest...)...)
	l.add(name+".bias", out)
}

// convNorm adds a convolution without a bias and the batch normalization after it.
func (l *params) convNorm(name string, out, in, side int) {
	l.add(name+".conv.weight", out, in, side, side)
	l.pair(name+".bn", out)
}

// resnet50 adds the tensors of He et al., "Deep residual learning for image recognition", 2015,
// table 1, with 1,000 classes.
func (l *params) resnet50() {
	l.convNorm("stem", 64, 3, 7)
	in := 64
	for stage, blocks := range []int{3, 4, 6, 3} {
		width := 64 << stage
		for b := range blocks {
			name := fmt.Sprintf("stage%d.block%d", stage+1, b)
			l.convNorm(name+".reduce", width, in, 1)
			l.convNorm(name+".middle", width, width, 3)
			l.convNorm(name+".expand", 4*width, width, 1)
			if b == 0 {
				l.convNorm(name+".shortcut", 4*width, in, 1)
			}
			in = 4 * width
		}
	}
	l.pair("fc", 1000, in)
}

// vgg16 adds the tensors of configuration D of Simonyan and Zisserman, "Very deep convolutional
// networks for large-scale image recognition", 2014, table 1.
func (l *params) vgg16() {
	in := 3
	for i, out := range []int{64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512} {
		l.pair(fmt.Sprintf("conv%d", i), out, in, 3, 3)
		in = out
	}
	l.pair("fc0", 4096, 7*7*in)
	l.pair("fc1", 4096, 4096)
	l.pair("fc2", 1000, 4096)
}

// bertBase adds the tensors of Devlin et al., "BERT: pre-training of deep bidirectional
// transformers", 2018, without a task's head. The vocabulary is the uncased one, with 30,522 word
// pieces.
func (l *params) bertBase() {
	const hidden, inner = 768, 3072
	l.add("embeddings.word", 30522, hidden)
	l.add("embeddings.position", 512, hidden)
	l.add("embeddings.kind", 2, hidden)
	l.pair("embeddings.norm", hidden)
	for i := range 12 {
		name := fmt.Sprintf("layer%d.", i)
		for _, part := range []string{"query", "key", "value", "attention.output"} {
			l.pair(name+part, hidden, hidden)
		}
		l.pair(name+"attention.norm", hidden)
		l.pair(name+"intermediate", inner, hidden)
		l.pair(name+"output", hidden, inner)
		l.pair(name+"norm", hidden)
	}
	l.pair("pooler", hidden, hidden)
}

// elements returns the number of elements of all tensors.
func (l params) elements() int {
	total := 0
	for _, p := range l {
		total += p.count
	}
	return total
}

func knownModel(name string) bool { return slices.Contains(models(), name) }
