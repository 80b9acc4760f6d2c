#include "stretto/layers/parameter_use.hpp"

namespace stretto {

void ParameterUse::set_microbatch(int /*microbatch*/) {}
void ParameterUse::begin(const UsedParameters& /*used*/, Pass /*pass*/) {}
void ParameterUse::end(const UsedParameters& /*used*/, Pass /*pass*/) {}

}  // namespace stretto
