// Compiled for AVX-512 (F, BW, DQ, VL) whatever the build's own instruction set is. The vectors are those of AVX: rows
// of small images have no room for longer ones. What counts is that there are 32 registers.

#include "lockstep/autograd/ops/conv2d/conv2d_direct_tile_body.h"

namespace lockstep::conv2d_direct {

constexpr Tiles kTilesAvx512 = make_tiles<6>();

}  // namespace lockstep::conv2d_direct
