// An algorithm of one's own: all_gather on a hypercube. Each rank's part is a plan, that is, data. The plans are proved for
// 2 to 64 ranks without running them, and four ranks run them.
#include <cstdio>
#include <stdexcept>

#include "stretto/planning/proof.hpp"
#include "stretto/stretto.hpp"

using namespace stretto;

// In round k, ranks whose numbers differ in bit k send each other the 2^k shares that they have. `size` is a power of two.
Plan hypercube(int rank, int size, std::int64_t count) {
  Plan plan;
  plan.name = "hypercube";
  plan.request = {
      .collective = Collective::all_gather, .method = Algorithm::user, .rank = rank, .size = size, .count = count};
  Lane& lane = plan.lanes.emplace_back();
  const auto share = [&](int first, int shares) { return Slice{Buffer::output, first * count, shares * count}; };
  lane.steps.push_back({.kind = StepKind::copy, .source = {Buffer::input, 0, count}, .destination = share(rank, 1)});
  lane.round_ends.push_back(lane.steps.size());
  for (int have = 1; have < size; have *= 2) {
    const int peer = rank ^ have;
    lane.steps.push_back({.kind = StepKind::send, .peer = peer, .source = share(rank / have * have, have)});
    lane.steps.push_back({.kind = StepKind::recv, .peer = peer, .destination = share(peer / have * have, have)});
    lane.round_ends.push_back(lane.steps.size());
  }
  return plan;
}

// The sentence that says what is wrong; empty if the plans of all ranks gather every share.
std::string fault(int size, std::int64_t count, int forgotten_rounds = 0) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < size; ++rank) {
    Lane& lane = plans.emplace_back(hypercube(rank, size, count)).lanes.front();
    for (int i = 0; i < forgotten_rounds; ++i) lane.round_ends.pop_back();
    lane.steps.resize(lane.round_ends.back());
  }
  for (const bool in_place : {false, true}) {
    if (const auto sentence = verify(plans, in_place)) return *sentence;
  }
  return "";
}

void gather(const Communicator& world) {
  constexpr std::int64_t count = 1000;
  const Tensor input({count}, DType::f32), output({world.size(), count}, DType::f32);
  for (std::int64_t i = 0; i < count; ++i) input.set(i, static_cast<double>(world.rank() * count + i));
  const Operation operation = world.prepare(hypercube(world.rank(), world.size(), count), input, output);
  operation.start(Stream::inline_()).wait();
  for (std::int64_t i = 0; i < output.size(); ++i) {
    if (output.at(i) != static_cast<double>(i)) throw std::runtime_error("A wrong element was gathered.");
  }
  const Record record = world.job().ledger().last(1).back();
  if (world.rank() == 0) {
    std::printf("%lld elements by %s, %llu bytes sent\n", static_cast<long long>(output.size()),
                record.method_text().c_str(), static_cast<unsigned long long>(record.bytes_sent));
  }
}

int main() {
  for (int size = 2; size <= 64; size *= 2) {
    if (const std::string sentence = fault(size, 3); !sentence.empty()) {
      std::fprintf(stderr, "%d ranks: %s\n", size, sentence.c_str());
      return 1;
    }
  }
  std::printf("without the last round: %s\n", fault(8, 3, 1).c_str());
  std::fflush(stdout);
  return launch(4, gather);
}
