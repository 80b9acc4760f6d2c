#include "stretto/overlap/unit_store.hpp"

namespace stretto {

UnitStore::~UnitStore() = default;

const char* name(Pass pass) {
  switch (pass) {
    case Pass::forward: return "forward";
    case Pass::backward: return "backward";
    case Pass::backward_input: return "backward_input";
    case Pass::backward_weight: return "backward_weight";
  }
  return "unknown";
}

}  // namespace stretto
