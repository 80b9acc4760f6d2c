#pragma once
#include "stretto/communicator.hpp"

namespace stretto {

// STRETTO_CALIBRATE: measures this job's routes on this machine unless an earlier job has, keeps the results for later jobs
// (MeasurementCache), and chooses by them from then on. Measures nothing that it cannot keep. Collective over a job's
// first communicator, before anything else is called on it; leaves no trace in the ledger. Cost: about two seconds, up to
// three times as long on a busy machine; a few microseconds where the measurements are known.
void calibrate_if_unknown(const Communicator& world);

}  // namespace stretto
