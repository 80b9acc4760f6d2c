#pragma once
#include <memory>

#include "stretto/layers/attention.hpp"
#include "stretto/layers/mesh.hpp"

namespace gpt {

// How the tokens of sequences are divided over ranks, and which of them attention sees.
struct SequenceOptions {
  bool divides_rows = false;                                         // sequence parallelism: TensorParallel::divides_rows
  bool keeps_gathered = false;                                       // TensorParallel::keeps_gathered
  stretto::SequenceLayout layout = stretto::SequenceLayout::zigzag;  // over the ranks of a ring
  stretto::kernels::AttentionMask mask;

  stretto::SequenceDivision division(const stretto::MeshShape& mesh) const {
    return {mesh[stretto::Axis::ring], mesh[stretto::Axis::ulysses], layout};
  }
  // Collective over the ring and the ulysses axis.
  std::shared_ptr<const stretto::AttentionCore> attention(const stretto::Mesh& mesh, bool overlap) const;
};

}  // namespace gpt
