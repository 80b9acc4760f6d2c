// Four ranks, processes of this program, sum a vector while each does other work.
#include <stretto/stretto.hpp>

#include <cstdio>
#include <vector>

int main() {
  return stretto::launch(4, [](const stretto::Communicator& world) {
    std::vector<double> values(1000, world.rank() + 1);
    const stretto::Stream stream("sums");
    const stretto::Work sum =
        world.all_reduce(values.data(), values.data(), 1000, stretto::DType::f64, stretto::ReduceOp::sum, stream);
    // ... other work ...
    sum.wait();
    if (world.rank() == 0) std::printf("every element is %g on every rank\n", values[999]);
  });
}
