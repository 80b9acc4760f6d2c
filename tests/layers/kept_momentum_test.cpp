#include "layers/optimizer/kept_momentum.hpp"

#include <gmock/gmock.h>

#include "stretto/kernels.hpp"
#include "stretto/layers/parameter.hpp"
#include "stretto/stretto.hpp"

namespace stretto {
namespace {

// What an exchange has brought comes back bit for bit, whatever the groups' magnitudes. The control: a momentum that has not
// travelled in one bit.
TEST(KeptMomentum, LosesNothing) {
  for (const int ranks : {2, 3}) {
    for (const std::int64_t count : {1, 1000, 5000, 150001}) {
      run_threads(ranks, [&](const Communicator& world) {
        const Tensor x({count}, DType::f32);
        for (std::int64_t i = 0; i < count; ++i) x.set(i, random_normal(1, "x", static_cast<std::uint64_t>(i)));
        const auto comes_back = [&] {
          KeptMomentum kept(QuantizedFormat::onebit, world, count, DType::f32);
          EXPECT_FALSE(kept.has_value());
          kept.keep(x);
          EXPECT_TRUE(kept.has_value());
          const Tensor back = Tensor::zeros({count}, DType::f32);
          kept.add_to(back, 1);
          for (std::int64_t i = 0; i < count; ++i) {
            if (back.at(i) != x.at(i)) return false;
          }
          return true;
        };
        EXPECT_EQ(comes_back(), count == 1);
        OperationOptions options;
        options.quantization.format = QuantizedFormat::onebit;
        world.all_reduce(x, ReduceOp::sum, Stream::inline_(), options).wait();
        EXPECT_TRUE(comes_back()) << count;
      });
    }
  }
}

}  // namespace
}  // namespace stretto
