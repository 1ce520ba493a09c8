// Compiled for the build's own instruction set.

#include "lockstep/autograd/ops/conv2d/conv2d_direct_tile_body.h"

namespace lockstep::conv2d_direct {

constexpr Tiles kTiles = make_tiles<Eight, 3>();

}  // namespace lockstep::conv2d_direct
