#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/planning/tuning.hpp"

// Measurements for the choice of methods: the fastest method of a call, and the cost of a message. The first job on a
// machine makes them at its start (STRETTO_CALIBRATE); `stretto-perf calibrate` takes more time for them. STAR-MPI
// (Faraj, Yuan and Lowenthal 2006) tries algorithms in the program's own calls. Here all are tried before the program's
// first call and the result stays, so that equal calls give equal sums, in one job and in the next.
namespace stretto {

struct MethodTime {
  Method method;
  double seconds = 0;  // of one call, in a loop without barriers; the mean of all ranks or, with a root, the slowest one's
};

// The times of one call by several methods. The same on all ranks.
struct STRETTO_API CallTimes {
  PlanRequest request;     // of rank 0, without a method
  std::int64_t bytes = 0;  // of the whole vector, as rules count them
  bool symmetric = false;  // whether the buffers were in symmetric memory
  std::vector<MethodTime> methods;

  double of(const Method& method) const;  // infinite if it was not timed
  const MethodTime& fastest() const;      // of at least one
};

// How TimedCall::time() times a method. A look is a loop of a few calls. The methods take turns in looks, so that other load
// on the machine meets all of them, and a method's time is the lower quartile of its looks. A method that is given up
// (`hopeless`) keeps the shortest time of its first look and the calls before it. Methods that take at most 1.5 times as
// long as the fastest are then timed for `seconds`.
struct Effort {
  int looks = 2;
  bool counts_median = false;  // the median of the looks counts, instead of their lower quartile
  // A method is given up if it took more than this many times as long as the fastest one, both in its first look and in the
  // calls before it.
  double hopeless = 1e9;
  int most_calls = 200;  // of a look; fewer if their vectors have more than most_bytes in all
  std::int64_t most_bytes = 1 << 20;
  double look_seconds = 1;  // at most, of a look; the shortest call before it tells how many calls fit
  int least_of_look = 1;    // calls of a look, however long they take, unless most_calls or most_bytes allow fewer
  double seconds = 0.01;    // of the last measurement of a method that is near the fastest; 0: none
  int least_calls = 3;      // of that measurement
};

// The input and the output of a call. Several calls may share them, because the first use of memory takes longer than a
// large call.
struct STRETTO_API TimedBuffers {
  std::shared_ptr<std::byte> input, output;
  std::int64_t bytes = 0;  // of each
  bool symmetric = false;

  static TimedBuffers of(std::int64_t bytes, bool symmetric);
};

// A collective with buffers on the host, to be timed: sums of f32, and moves of f32, with root 0.
class STRETTO_API TimedCall {
 public:
  // Elements of a rank's share, or of the vector, for a vector of `bytes` bytes. 0: too few for a share of each rank.
  static std::int64_t count_of(Collective collective, std::int64_t bytes, int ranks);
  // Collective. Allocates twice the vector on each rank.
  TimedCall(const Communicator& communicator, Collective collective, std::int64_t count, bool symmetric);
  // The buffers must be of one kind of memory on all ranks, and have at least the bytes of the vector.
  TimedCall(const Communicator& communicator, Collective collective, std::int64_t count, TimedBuffers buffers);

  const PlanRequest& request() const { return request_; }
  std::int64_t bytes() const;
  bool is_symmetric() const { return buffers_.symmetric; }
  Method chosen() const;  // the library's choice, by the measurements so far
  // Collective. Times these methods, and leaves out those that cannot do this call between these ranks. Methods in `always`
  // are timed for Effort::seconds however slow they are.
  CallTimes time(const std::vector<Method>& methods, const Effort& effort, const std::vector<Method>& always = {}) const;

 private:
  Communicator communicator_;
  PlanRequest request_;
  TimedBuffers buffers_;
  Call call_;
};

// The collectives that have a choice of methods, but for the barrier.
STRETTO_API const std::vector<Collective>& timed_collectives();
// The methods within a node that can do a collective of `elements` elements, in every number of lanes and some numbers of
// pieces, none of which would be empty.
STRETTO_API std::vector<Method> methods_within_node(Collective collective, std::int64_t elements);

// A call of at most this many bytes takes one method for both kinds of memory, because it is shorter than the exchange in
// which ranks tell each other where the buffers are. measured_route() needs its times in ordinary memory only.
inline constexpr std::int64_t alike_up_to = 1024;

// The measurements of a route, as a tuning file has them: costs for the cost model, and for each kind of memory the table of
// the fastest methods.
struct STRETTO_API MeasuredRoute {
  RouteCost route;  // without rules
  std::string table, symmetric_table;
  std::string to_json() const;  // an element of a tuning file's "routes"
};
// Fits the costs to the times, by non-negative least squares of relative errors. Sizes must ascend in each collective. A
// table changes its method only where that gains 5% or more, since a method that is faster at a single size is often noise.
// Between two sizes a method's time is interpolated as a power of the bytes; a third method that is 5% faster where the
// table would change gets a range between the other two. A table covers calls of up to `reach` times the largest size (at
// most 4 times, if that size is below 1 MiB), and any larger call if `reach` is 0. From twice the largest size on, a method
// in pieces gets four times as many pieces for four times as many bytes, up to most_pieces.
STRETTO_API MeasuredRoute measured_route(const std::string& route, int ranks, double ranks_per_core,
                                         const std::vector<CallTimes>& times, int reach = 0);
// The route of ranks that nobody has timed: the costs by which the tuning already chooses, and its tables if they apply.
STRETTO_API MeasuredRoute unmeasured_route(const Tuning& tuning, const std::string& route, int ranks, double ranks_per_core);
// The table alone: "all_reduce:0-4096:packet,4096-inf:ring;...".
STRETTO_API std::string table_of(const std::vector<CallTimes>& times, int reach = 0);

}  // namespace stretto
