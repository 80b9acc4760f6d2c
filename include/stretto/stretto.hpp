#pragma once
// Includes the communication layer. Include these headers separately: cost.hpp, tuning.hpp, simulate.hpp and proof.hpp,
// which examine plans without running them; calibration.hpp, which times methods; mpi.hpp; kernels.hpp; and the headers in
// overlap/ and layers/.
#include "stretto/export.hpp"  // first: it says which C++ is needed

#include "stretto/communicator.hpp"
#include "stretto/device.hpp"
#include "stretto/dtype.hpp"
#include "stretto/error.hpp"
#include "stretto/launch.hpp"
#include "stretto/ledger.hpp"
#include "stretto/memory.hpp"
#include "stretto/plan.hpp"
#include "stretto/require_same.hpp"
#include "stretto/settings.hpp"
#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"
