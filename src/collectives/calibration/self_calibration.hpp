#pragma once
#include "stretto/communicator.hpp"

namespace stretto {

// STRETTO_CALIBRATE: measures what this job needs to know of the machine and does not, keeps it for later jobs
// (MeasurementCache), and lets the job's choices rest on it. Collective over a job's first communicator, before anything
// else is called on it; leaves no trace in the ledger. Cost: about two seconds the first time, up to three times as long on
// a busy machine.
void calibrate_if_unknown(const Communicator& world);

}  // namespace stretto
