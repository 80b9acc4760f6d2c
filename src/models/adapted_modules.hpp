#pragma once
#include "stretto/layers/adapter.hpp"
#include "stretto/layers/parameter.hpp"

namespace stretto {

// With adapters, freezes all records of a model but theirs and those of the modules to save. Throws Error(invalid_argument),
// in one sentence, as AdapterOptions::check(), for a module to save that the model has not, and for one of which a record
// also holds others.
void freeze_base(const Parameters& parameters, const DecoderShape& shape, const AdapterOptions& adapters);

}  // namespace stretto
