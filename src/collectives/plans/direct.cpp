// One message from one rank to another: alpha + n beta
#include "collectives/plans/generators.hpp"

namespace stretto::plans {

Cost direct_send_cost(const PlanRequest& request) { return {1, 1, static_cast<double>(request.count), 0}; }
Plan direct_send(const PlanRequest& request) {
  PlanBuilder plan(request);
  plan.send(request.root, input(0, request.count));
  return plan.finish();
}

Cost direct_recv_cost(const PlanRequest& request) { return {1, 1, static_cast<double>(request.count), 0}; }
Plan direct_recv(const PlanRequest& request) {
  PlanBuilder plan(request);
  plan.recv(request.root, output(0, request.count));
  return plan.finish();
}

}  // namespace stretto::plans
