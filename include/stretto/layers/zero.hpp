#pragma once
#include <vector>

#include "stretto/communicator.hpp"

namespace stretto {

// The communication of ZeRO-3 (Rajbhandari et al. 2020) for one unit of parameters, such as a layer: each rank of a
// data-parallel group of p owns 1/p of the unit, everybody gathers all of it before forward and once more before backward,
// and gradients are averaged into the shares. With ZeRO++ (Wang et al. 2023) there go between nodes, where M is the unit's
// bytes, 0.75 M a step instead of 3 M (of 16-bit elements; the scales add 3%):
//   weights    qwZ: both gathers are quantized, in int8 M/2 each. Every rank computes with the same rounded weights, its own
//              share's too; the shares themselves stay as they are
//   secondary  hpZ: after the gather before forward the ranks of a node keep a copy of the unit among them, 1/m of it each,
//              and the gather before backward stays inside the node. Bit for bit what was gathered before forward
//   gradients  qgZ: the reduce-scatter is quantized, in int4 M/4
// The tensors lie one after the other in one vector, filled up with zeros to p equal shares, so that any shapes will do.
//
// A step: gather_forward, forward, release; gather_backward, backward into gradients(), release, reduce_scatter; the
// optimizer changes share() by gradient_share(). A unit that is still gathered from forward need not be gathered again. All
// members do the same in the same order. One thread uses a unit, which outlives the Works that it gave; after an exception
// it cannot be used again.
class STRETTO_API ZeroUnit {
 public:
  struct Options {
    QuantizedFormat weights = QuantizedFormat::none;
    QuantizedFormat gradients = QuantizedFormat::none;
    bool secondary = false;
    Method gather_by = Algorithm::automatic;  // over the whole group
    Method reduce_by = Algorithm::automatic;
    // Of the same ranks in the same order: gradients are reduced over it, so that gathers, on a more urgent stream, overtake
    // them. Operations of one communicator wait for each other. None: over the unit's group.
    Communicator reduce_group = {};
  };
  // Collective over the group. Elements travel and lie as dtype, gradients as gradient_dtype. The share begins as zeros.
  // Throws Error(invalid_argument), before memory is made, for formats, types and methods that do not go together.
  ZeroUnit(Communicator group, std::vector<Shape> shapes, DType dtype, DType gradient_dtype, const Options& options);

  // What this rank owns; its optimizer writes it when no gather is under way.
  const Tensor& share() const { return share_; }
  // Takes this rank's part of whole tensors, one for each shape, into the share. No communication.
  void adopt(const std::vector<Tensor>& whole) const;

  // values() can be used when the Work is done. Gathers of a unit follow each other, on whatever streams: one begins when
  // the one before is done, for which its stream waits (an inline stream: the calling thread). Throw Error(invalid_argument)
  // where the unit is gathered already, and with hpZ where backward comes before any forward.
  Work gather_forward(const Stream& stream);
  Work gather_backward(const Stream& stream);
  // Views by shape of what was gathered; none before a gather and after a release.
  const std::vector<Tensor>& values() const { return values_; }
  // Gives the memory back, when operations under way and holders of values are done with it.
  void release();

  // Views by shape, of zeros when first asked for since the last reduce_scatter.
  const std::vector<Tensor>& gradients();
  // The average over the group into gradient_share(), as long as share(), when the Work is done. gradients() are given away.
  Work reduce_scatter(const Stream& stream);
  const Tensor& gradient_share() const { return gradient_share_; }

 private:
  std::vector<Tensor> views_of(const Tensor& flat) const;
  void begin_gather(const Stream& stream);
  static OperationOptions quantized(QuantizedFormat format, const Method& method, const char* tag);

  Communicator group_, reduce_group_, node_;  // node_ with hpZ only
  std::vector<Shape> shapes_;
  Options options_;
  std::int64_t whole_;      // elements that a gather may write
  std::int64_t node_part_;  // of these, what a rank keeps with hpZ
  Tensor share_, gradient_share_, secondary_, flat_, flat_gradients_;
  std::vector<Tensor> values_, gradients_;
  Work last_gather_;
};

}  // namespace stretto
