#include "lockstep/core/cuda/graph.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "lockstep/core/computation.h"
#include "lockstep/core/cuda/check.h"

namespace lockstep::cuda {

struct Graph::Handle {
  explicit Handle(const Stream& stream) : hold(stream) {}
  ~Handle() {
    if (exec) cudaGraphExecDestroy(exec);
  }
  MemoryHold hold;
  cudaGraphExec_t exec = nullptr;
};

Graph::Graph(const Stream& stream, std::unique_ptr<Handle> handle, std::size_t nodes)
    : stream_(stream), handle_(std::move(handle)), nodes_(nodes) {}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;

Graph Graph::capture(const Stream& stream, const std::function<void()>& body) {
  auto handle = std::make_unique<Handle>(stream);
  Computation::settle_device(stream.device());  // no part of the graph
  const StreamGuard guard(stream);
  // Thread-local: what other threads do meanwhile, such as watching over collectives, is their business.
  LOCKSTEP_CUDA_CHECK(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    body();
    Computation::settle_captured();
  } catch (...) {
    cudaStreamEndCapture(stream.handle(), &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();  // what went wrong is what body() threw
    throw;
  }
  LOCKSTEP_CUDA_CHECK(cudaStreamEndCapture(stream.handle(), &graph));
  std::size_t nodes = 0;
  const cudaError_t counted = cudaGraphGetNodes(graph, nullptr, &nodes);
  const cudaError_t made = cudaGraphInstantiate(&handle->exec, graph, 0);
  cudaGraphDestroy(graph);
  LOCKSTEP_CUDA_CHECK(counted);
  LOCKSTEP_CUDA_CHECK(made);
  return {stream, std::move(handle), nodes};
}

void Graph::launch() const {
  Computation::settle_device(stream_.device());  // the graph may change what they read
  const DeviceGuard guard(stream_.device());
  LOCKSTEP_CUDA_CHECK(cudaGraphLaunch(handle_->exec, stream_.handle()));
}

}  // namespace lockstep::cuda
