// Package optimizer holds the rules by which a parameter server changes values when it receives
// their gradients.
//
//	type      slots  update of one value w by its gradient g, at step t
//	SGD       -      w -= η·g
//	Momentum  m      m = μ·m + g;  w -= η·m            (Nesterov: w -= η·(g + μ·m))
//	Adagrad   n      n += g²;  w -= η·g / (√n + ε)
//	Adam      m, v   m = β₁·m + (1-β₁)·g;  v = β₂·v + (1-β₂)·g²
//	                 w -= η·m / (1-β₁ᵗ) / (√(v / (1-β₂ᵗ)) + ε)
//	FTRL      z, n   σ = (√(n+g²) - √n) / η;  z += g - σ·w;  n += g²
//	                 w = 0 if |z| ≤ λ₁, else -(z - sign(z)·λ₁) / ((β+√n)/η + λ₂)
//	Func      any    a function of the program
//
// A field of an Optimizer that is 0 stands for its default, which the field's comment states.
//
// # Bits
//
// All arithmetic happens in the type of the values, and each operation is rounded by itself. So the
// results have the same bits on every processor. Factors that are equal for all values of a step
// are computed in float64, and rounded once. Adam's division by 1-β₂ᵗ is such a factor: it becomes
// a product of √v and 1/√(1-β₂ᵗ).
//
// # Text
//
// A tensor's declaration carries its Optimizer as text, for example
//
//	adam(rate=0.001,beta1=0.9,beta2=0.999,epsilon=1e-08)
//
// String writes every parameter. Parse also accepts a text without those that have a default.
//
// The package does not know tensors, versions or servers.
package optimizer
