// Package optim trains the parameters of a model. The gradient of a parameter goes one of two ways:
//
//	Ring      by an allreduce of the coordinator; each worker then runs the optimizer
//	Servers   to the parameter servers, which run the optimizer; each worker pulls the new value
//
// Both ways share the coordinator's priorities, its credit and its timeline. A parameter may change
// sides between two steps, with its value, the optimizer's state and step count, and what compression
// has left out:
//
//	opt, err := optim.New(ctx, co, cl, optimizer.Adam{Rate: 1e-3}, []optim.Parameter[float32]{
//		{Name: "embedding", Value: e, Gradient: ge, Way: optim.Servers},
//		{Name: "dense", Value: d, Gradient: gd},
//	})
//	for each step {
//		... compute the gradients, and call opt.Ready for each ...
//		err := opt.Step(ctx)
//	}
//
// Asynchronous and bounded tensors, and tables, are no parameters: a program pushes and pulls them by
// package ps beside the steps.
package optim
