#pragma once
#include <exception>

#include "stretto/layers/parameter.hpp"
#include "stretto/overlap/unit_store.hpp"

namespace stretto {

// Layers announce every use of their parameters, so that values can be gathered before a use, freed after it, and gradients
// summed while backward goes on. This class does nothing: all values are always there. Only the thread that computes may
// call an object.
class STRETTO_API ParameterUse {
 public:
  ParameterUse() = default;
  virtual ~ParameterUse() = default;
  ParameterUse(const ParameterUse&) = delete;
  ParameterUse& operator=(const ParameterUse&) = delete;

  // The uses from now on are of this microbatch; 0 until it is called. Layers need not know: whoever runs the microbatches
  // says it before each action.
  virtual void set_microbatch(int microbatch);
  // When it returns, Parameter::value of these parameters may be read until end() if reads_values(pass), and
  // Parameter::gradient may be added to if adds_gradients(pass). On a GPU, computation() waits instead of the caller.
  virtual void begin(const UsedParameters& used, Pass pass);
  // The layer has enqueued its last read of the values, or has added this microbatch's gradients.
  virtual void end(const UsedParameters& used, Pass pass);
};

// A use of parameters, whose handle must outlive it, from the constructor to the destructor. An exception that leaves the
// scope ends no use: the step has failed.
class InUse {
 public:
  InUse(ParameterUse& use, const UsedParameters& used, Pass pass)
      : use_(use), used_(used), pass_(pass), exceptions_(std::uncaught_exceptions()) {
    use_.begin(used_, pass_);
  }
  ~InUse() noexcept(false) {  // end() starts operations, which may fail
    if (std::uncaught_exceptions() == exceptions_) use_.end(used_, pass_);
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  ParameterUse& use_;
  const UsedParameters& used_;
  Pass pass_;
  int exceptions_;
};

}  // namespace stretto
