// mnist_train: trains a small network on MNIST in one of three modes. See --help.

#include <vector>

#include "apps/mnist_train/options.h"
#include "apps/mnist_train/trainer.h"
#include "apps/support/cli.h"
#include "lockstep/distributed/launcher/launcher.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  return apps::run_main("mnist_train", [&] {
    const auto options = apps::parse_options(argc, argv);
    if (!options) return 0;
    if (options->mode == apps::Mode::ddp && options->nproc > 1 && !apps::started_by_launcher()) {
      launcher::Options launch;
      launch.nproc_per_node = options->nproc;
      launch.output = launcher::Output::rank0_plain;
      launch.name = "mnist_train";
      return launcher::run_local(launch, std::vector<std::string>(argv + 1, argv + argc));
    }
    apps::train(*options);
    return 0;
  });
}
