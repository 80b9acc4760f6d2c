#pragma once
// The communication layer. Kernels, layers and the trainer's parts have headers of their own beside this one.
#include "stretto/communicator.hpp"
#include "stretto/dtype.hpp"
#include "stretto/error.hpp"
#include "stretto/launch.hpp"
#include "stretto/ledger.hpp"
#include "stretto/plan.hpp"
#include "stretto/settings.hpp"
#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"
