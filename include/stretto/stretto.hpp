#pragma once
// The communication layer. Headers of their own, which this one leaves out, have: what looks at plans and choices without
// running them (cost.hpp, tuning.hpp, simulate.hpp, proof.hpp), MPI (mpi.hpp), and kernels, layers and the trainer's parts.
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
