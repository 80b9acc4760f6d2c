#pragma once
// The communication layer. It includes neither the headers that examine plans without running them (cost.hpp,
// tuning.hpp, simulate.hpp, proof.hpp), nor those for MPI (mpi.hpp), kernels, overlap and layers.
#include "stretto/communicator.hpp"
#include "stretto/device.hpp"
#include "stretto/dtype.hpp"
#include "stretto/error.hpp"
#include "stretto/launch.hpp"
#include "stretto/ledger.hpp"
#include "stretto/memory.hpp"
#include "stretto/plan.hpp"
#include "stretto/settings.hpp"
#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"
