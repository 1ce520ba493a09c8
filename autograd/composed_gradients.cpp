#include "lockstep/autograd/composed_gradients.h"

#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"

namespace lockstep {

TensorList composed_gradients(const std::function<Tensor(const std::vector<Tensor>&)>& function,
                              const std::vector<Tensor>& inputs, const Tensor& grad) {
  const EnableGradGuard recording;
  // Views, so that the pass ends here, even where one input was computed from another.
  std::vector<Tensor> own, wanted;
  for (const Tensor& input : inputs) {
    own.push_back(needs_grad(input) ? input.view(input.sizes()) : input);
    if (needs_grad(input)) wanted.push_back(own.back());
  }
  const Tensor out = function(own);
  const std::vector<Tensor> gradients = Engine::gradients({&out, 1}, {&grad, 1}, wanted, true, false, true);
  TensorList results(inputs.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (needs_grad(inputs[i])) results[i] = gradients[next++];
  return results;
}

}  // namespace lockstep
