#include "stretto/layers/parameter_use.hpp"

namespace stretto {

void ParameterUse::begin(const std::vector<Parameter*>& /*parameters*/, Pass /*pass*/) {}
void ParameterUse::end(const std::vector<Parameter*>& /*parameters*/, Pass /*pass*/) {}

}  // namespace stretto
