#include "stretto/program.hpp"

#include "core/fail.hpp"

namespace stretto {

void Program::check(Group group) const {
  require(group.number >= 0 && group.number < std::ssize(groups_), "Program '{}' has no group {}; it has {}.", name_,
          group.number, groups_.size());
}

const Program::TypedValue& Program::value(Value value) const {
  require(value.number >= 0 && value.number < std::ssize(values_), "Program '{}' has no value {}; it has {}.", name_,
          value.number, values_.size());
  return values_[static_cast<std::size_t>(value.number)];
}

Program::Value Program::add(const ValueType& type, int group) {
  const int dimension = type.placement.dimension;
  require(dimension >= -1 && dimension < std::ssize(type.shape),
          "A value of program '{}' has {} dimensions, and is to be divided along dimension {}.", name_, type.shape.size(),
          dimension);
  values_.push_back({type, group});
  return {static_cast<int>(values_.size()) - 1};
}

Program::Group Program::group(int devices) {
  require(devices > 0, "A group of program '{}' has {} devices; it needs one or more.", name_, devices);
  groups_.push_back(devices);
  return {static_cast<int>(groups_.size()) - 1};
}

Program::Value Program::input(Group group, const ValueType& type) {
  check(group);
  const Value result = add(type, group.number);
  inputs_.push_back(result.number);
  return result;
}

std::vector<Program::Value> Program::call(const std::string& function, Group group, const std::vector<Value>& inputs,
                                          const std::vector<ValueType>& outputs, std::int64_t argument) {
  check(group);
  Step step{.function = function, .group = group.number, .argument = argument};
  for (const Value input : inputs) {
    require(value(input).group == group.number,
            "Function '{}' of program '{}' is called on group {}, and its input lies on group {}; move it there.", function,
            name_, group.number, value(input).group);
    step.inputs.push_back(input.number);
  }
  std::vector<Value> results;
  for (const ValueType& output : outputs) {
    results.push_back(add(output, group.number));
    step.outputs.push_back(results.back().number);
  }
  steps_.push_back(std::move(step));
  return results;
}

Program::Value Program::reduce(Value value, ReduceOp op, ValuePlacement placement) {
  const TypedValue from = this->value(value);
  const int devices = groups_[static_cast<std::size_t>(from.group)];
  const Shape& shape = from.type.shape;
  require(from.type.placement == ValuePlacement::along(0) && shape.front() == devices && placement.dimension <= 0,
          "A value of program '{}' is reduced over {} devices; it must have as many entries in dimension 0 and be divided "
          "along it, and the result is replicated or divided along dimension 0.",
          name_, devices);
  require(op != ReduceOp::premul_sum, "Program '{}' reduces by premul_sum; multiply in a function, and take sum.", name_);
  ValueType type{from.type.dtype, {}, placement};
  for (std::size_t d = 1; d < shape.size(); ++d) type.shape.push_back(shape[d]);
  const Value result = add(type, from.group);
  steps_.push_back({.kind = StepKind::reduce,
                    .function = stretto::name(op),
                    .group = from.group,
                    .inputs = {value.number},
                    .outputs = {result.number},
                    .op = op});
  return result;
}

Program::Value Program::move(Value value, Group group, ValuePlacement placement) {
  check(group);
  ValueType type = this->value(value).type;
  type.placement = placement;
  const Value result = add(type, group.number);
  steps_.push_back({.kind = StepKind::move,
                    .function = "move",
                    .group = group.number,
                    .inputs = {value.number},
                    .outputs = {result.number}});
  return result;
}

Program::Value Program::kept_input(Group group, const ValueType& type) {
  check(group);
  const Value result = add(type, group.number);
  kept_inputs_.push_back(result.number);
  return result;
}

void Program::keep(Value value) {
  this->value(value);
  kept_.push_back(value.number);
}

std::vector<int> Program::given() const {
  std::vector<int> result = inputs_;
  result.insert(result.end(), kept_inputs_.begin(), kept_inputs_.end());
  return result;
}

std::vector<int> Program::lasting() const {
  std::vector<int> result = given();
  result.insert(result.end(), outputs_.begin(), outputs_.end());
  result.insert(result.end(), kept_.begin(), kept_.end());
  return result;
}

void Program::output(Value value) {
  this->value(value);
  outputs_.push_back(value.number);
}

}  // namespace stretto
