#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

#include "bench/all_reduce_peers.h"

namespace lockstep::bench {
namespace {

std::shared_ptr<gloo::Context> connect(int rank, int world_size, const std::string& folder, const std::string& name) {
  gloo::rendezvous::FileStore files(folder);
  gloo::rendezvous::PrefixStore store(name, files);
  gloo::transport::tcp::attr attributes("127.0.0.1");
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, world_size);
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  context->connectFullMesh(store, device);
  return context;
}

template <typename Algorithm>
Contestant old_algorithm(const std::string& name, std::shared_ptr<gloo::Context> context) {
  return {name, [context](float* data, std::int64_t count) -> std::function<void()> {
            auto algorithm = std::make_shared<Algorithm>(context, std::vector<float*>{data}, static_cast<int>(count));
            return [algorithm] { algorithm->run(); };
          }};
}

}  // namespace

std::vector<Contestant> raw_gloo(int rank, int world_size, const std::string& folder) {
  const auto context = [&](const char* name) { return connect(rank, world_size, folder, name); };
  auto ring = context("ring");
  return {old_algorithm<gloo::AllreduceHalvingDoubling<float>>("raw gloo halving-doubling", context("halving")),
          old_algorithm<gloo::AllreduceRingChunked<float>>("raw gloo ring-chunked", context("chunked")),
          {"raw gloo ring (c10d's)", [ring](float* data, std::int64_t count) -> std::function<void()> {
             return [ring, data, count] {
               gloo::AllreduceOptions options(ring);
               options.setOutput(data, static_cast<std::size_t>(count));
               options.setReduceFunction(
                   static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
               options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
               gloo::allreduce(options);
             };
           }}};
}

}  // namespace lockstep::bench
