#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "support/variables.hpp"

namespace stretto {

// The transports of this build, by STRETTO_TRANSPORT.
inline std::vector<const char*> transports_here() {
#ifdef STRETTO_HAVE_UCX
  return {"auto", "ucx"};
#else
  return {"auto"};
#endif
}

// Tests that run once over each of them: INSTANTIATE_TEST_SUITE_P(Transports, X, testing::ValuesIn(transports_here())).
class OverTransports : public testing::TestWithParam<const char*> {
  const Variable transport_{"STRETTO_TRANSPORT", GetParam()};
};

}  // namespace stretto
