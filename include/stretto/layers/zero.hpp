#pragma once
#include <vector>

#include "stretto/communicator.hpp"

namespace stretto {

// The communication of ZeRO-3 (Rajbhandari et al. 2020) for one unit of parameters, such as a layer. Each rank of a
// data-parallel group of p owns 1/p of the unit. All ranks gather the whole unit before forward and again before
// backward, and gradients are averaged into the shares. ZeRO++ (Wang et al. 2023) reduces the traffic between nodes
// from 3 M bytes per step to 0.75 M, where M is the unit's bytes in 16-bit elements (scales add 3%), by three options:
//   weights    qwZ: both gathers are quantized, to M/2 each in int8. All ranks compute with the same rounded weights, their
//              own share included; the shares themselves keep their precision.
//   secondary  hpZ: after the gather before forward, the m ranks of a node keep a copy of the unit, 1/m of it each. The
//              gather before backward stays inside the node and gives the same bits.
//   gradients  qgZ: the reduce-scatter is quantized, to M/4 in int4.
// Tensors of any shapes lie one after the other in one vector, padded with zeros to p equal shares.
//
// A step: gather_forward, forward, release; gather_backward, backward into gradients(), release, reduce_scatter. Then
// the optimizer updates share() from gradient_share(). A unit that is still gathered from forward need not be gathered
// again. All members must make the same calls in the same order. Only one thread may use a unit. A unit must outlive
// the Works that it returned. After an exception it cannot be used again.
class STRETTO_API ZeroUnit {
 public:
  struct Options {
    QuantizedFormat weights = QuantizedFormat::none;    // qwZ
    QuantizedFormat gradients = QuantizedFormat::none;  // qgZ
    bool secondary = false;                             // hpZ
    Method gather_by = Algorithm::automatic;            // for gathers over the whole group
    Method reduce_by = Algorithm::automatic;
    // A communicator of the same ranks in the same order, over which gradients are reduced, so that gathers on a more
    // urgent stream overtake them: operations of one communicator wait for each other. Empty: the unit's group.
    Communicator reduce_group = {};
  };
  // Collective over the group. Parameters are stored and travel as dtype, gradients as gradient_dtype. The share begins
  // as zeros. Throws Error(invalid_argument), before it allocates memory, for formats, types and methods that do not go
  // together.
  ZeroUnit(Communicator group, std::vector<Shape> shapes, DType dtype, DType gradient_dtype, const Options& options);

  // The part that this rank owns. The optimizer may write it when no gather is in flight.
  const Tensor& share() const { return share_; }
  // Copies this rank's part of the given tensors, one for each shape, into the share. No communication.
  void adopt(const std::vector<Tensor>& whole) const;

  // Start a gather; values() are valid when the Work is done. The stream first waits for the unit's previous gather (on
  // an inline stream, the calling thread does). Throws Error(invalid_argument) if the unit is gathered already, and
  // with hpZ if gather_backward comes before any gather_forward.
  Work gather_forward(const Stream& stream);
  Work gather_backward(const Stream& stream);
  // The gathered tensors, as views by shape; empty before a gather and after release().
  const std::vector<Tensor>& values() const { return values_; }
  // Frees the gathered memory, as soon as operations in flight and copies of values() no longer use it.
  void release();

  // The gradients to fill, as views by shape. The first call after a reduce_scatter() returns zeros.
  const std::vector<Tensor>& gradients();
  // Averages the gradients over the group into gradient_share(), which has the length of share() and is valid when the
  // Work is done. After the call, gradients() returns new tensors.
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
