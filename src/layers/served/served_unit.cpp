#include "layers/served/served_unit.hpp"

namespace stretto {

Work ServedUnit::gather(const Stream& /*stream*/) { return traffic_.pull(table_, share()); }

Work ServedUnit::sum(const Stream& /*stream*/) {
  gradients();  // an unused unit pushes zeros
  zero_unset();
  return traffic_.push(table_, gradient_share());
}

}  // namespace stretto
