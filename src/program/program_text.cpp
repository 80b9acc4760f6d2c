#include "program/program_text.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/fail.hpp"

namespace stretto {
namespace {

using Json = nlohmann::json;

Json to_json(const ValueType& type) {
  return {{"dtype", static_cast<int>(type.dtype)},
          {"shape", std::vector<std::int64_t>(type.shape.begin(), type.shape.end())},
          {"along", type.placement.dimension}};
}

// A number that stands for one of an enumeration.
template <class Enum>
Enum one_of(const Json& json, Enum last) {
  const int number = json.get<int>();
  require(number >= 0 && number <= static_cast<int>(last), "The text of a program has {} where 0 to {} can be.", number,
          static_cast<int>(last));
  return static_cast<Enum>(number);
}

ValueType type_of(const Json& json) {
  ValueType type{one_of(json.at("dtype"), DType::f8e5m2), {}, {json.at("along").get<int>()}};
  for (const Json& extent : json.at("shape")) type.shape.push_back(extent.get<std::int64_t>());
  return type;
}

Json to_json(const ProgramSetup& setup) {
  const Program& program = setup.program;
  Json inputs = Json::array(), steps = Json::array();
  std::vector<int> given = program.given();
  std::ranges::sort(given);
  for (const int input : given) {
    const Program::TypedValue& value = program.values()[static_cast<std::size_t>(input)];
    const bool is_kept = std::ranges::find(program.kept_inputs(), input) != program.kept_inputs().end();
    inputs.push_back({{"value", input}, {"group", value.group}, {"type", to_json(value.type)}, {"kept", is_kept}});
  }
  for (const Program::Step& step : program.steps()) {
    Json outputs = Json::array();
    for (const int output : step.outputs)
      outputs.push_back(to_json(program.values()[static_cast<std::size_t>(output)].type));
    steps.push_back({{"kind", static_cast<int>(step.kind)},
                     {"function", step.function},
                     {"group", step.group},
                     {"inputs", step.inputs},
                     {"outputs", outputs},
                     {"argument", step.argument},
                     {"op", static_cast<int>(step.op)}});
  }
  return Json{{"name", program.name()},
              {"devices", program.groups()},
              {"inputs", inputs},
              {"steps", steps},
              {"results", program.outputs()},
              {"kept", program.kept()},
              {"groups", setup.groups},
              {"client", setup.client},
              {"weight", setup.weight},
              {"in_flight", setup.most_in_flight},
              {"dispatch", static_cast<int>(setup.dispatch)}};
}

// The program is made again by the calls that made it, which check it again: inputs may stand between steps.
ProgramSetup setup_of(const Json& json) {
  ProgramSetup setup{Program(json.at("name").get<std::string>()),
                     json.at("groups").get<std::vector<std::vector<int>>>(),
                     json.at("client").get<std::string>(),
                     json.at("weight").get<double>(),
                     json.at("in_flight").get<int>(),
                     one_of(json.at("dispatch"), Dispatch::op_by_op)};
  Program& program = setup.program;
  for (const Json& devices : json.at("devices")) program.group(devices.get<int>());
  std::size_t next_input = 0;
  const Json& inputs = json.at("inputs");
  const auto add_inputs = [&](bool all) {
    while (next_input < inputs.size() &&
           (all || inputs[next_input].at("value").get<int>() == static_cast<int>(program.values().size()))) {
      const Json& input = inputs[next_input];
      const Program::Group group{input.at("group").get<int>()};
      input.at("kept").get<bool>() ? program.kept_input(group, type_of(input.at("type")))
                                   : program.input(group, type_of(input.at("type")));
      ++next_input;
    }
  };
  for (const Json& step : json.at("steps")) {
    add_inputs(false);
    const auto kind = one_of(step.at("kind"), Program::StepKind::move);
    const auto op = one_of(step.at("op"), ReduceOp::premul_sum);
    const Program::Group group{step.at("group").get<int>()};
    std::vector<Program::Value> values;
    for (const Json& input : step.at("inputs")) values.push_back({input.get<int>()});
    std::vector<ValueType> types;
    for (const Json& output : step.at("outputs")) types.push_back(type_of(output));
    require(kind == Program::StepKind::call || (values.size() == 1 && types.size() == 1),
            "The text of a program has a step with {} inputs and {} outputs that must have one of each.", values.size(),
            types.size());
    if (kind == Program::StepKind::call) {
      program.call(step.at("function").get<std::string>(), group, values, types, step.at("argument").get<std::int64_t>());
    } else if (kind == Program::StepKind::reduce) {
      program.reduce(values.front(), op, types.front().placement);
    } else {
      program.move(values.front(), group, types.front().placement);
    }
  }
  add_inputs(true);
  for (const Json& output : json.at("results")) program.output({output.get<int>()});
  for (const Json& kept : json.at("kept")) program.keep({kept.get<int>()});
  return setup;
}

}  // namespace

std::string to_text(const ProgramSetup& setup) {
  try {
    return to_json(setup).dump();
  } catch (const Json::exception& error) {
    fail(ErrorCode::invalid_argument, "Names of programs, functions and clients must be UTF-8: {}", error.what());
  }
}

ProgramSetup setup_from_text(const std::string& text) {
  try {
    return setup_of(Json::parse(text));
  } catch (const Json::exception& error) {
    fail(ErrorCode::invalid_argument, "The text of a program cannot be read: {}", error.what());
  }
}

}  // namespace stretto
