#include "sequence_division.hpp"

#include "stretto/device.hpp"

namespace gpt {

using namespace stretto;

std::shared_ptr<const AttentionCore> SequenceOptions::attention(const Mesh& mesh, bool overlap) const {
  std::shared_ptr<const AttentionCore> core;
  if (mesh.size(Axis::ring) > 1) {
    core = std::make_shared<RingAttention>(mesh.over(Axis::ring), division(mesh.shape()), mask, overlap);
  } else {
    core = std::make_shared<LocalAttention>(mask);
  }
  if (mesh.size(Axis::ulysses) == 1) return core;
  return std::make_shared<UlyssesAttention>(mesh.over(Axis::ulysses), core, overlap ? Stream("ulysses") : computation());
}

}  // namespace gpt
