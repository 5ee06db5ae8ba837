-- Load for wrk: `post` sends about 1000 pre-generated V2 requests, all different; `get` one tiny request.
local kind = "post"
local variants, at = {}, 0

local function hex(digits)
  local out = {}
  for i = 1, digits do out[i] = string.format("%x", math.random(0, 15)) end
  return table.concat(out)
end

local function body(id)
  local rows = math.random(1, 4)
  local numbers = {}
  for i = 1, 24 + math.random(0, 16) do numbers[i] = string.format("%.3f", math.random()) end
  return string.format(
    '{"id":"%s","inputs":[{"name":"input","shape":[%d,%d],"datatype":"FP32","data":[%s]}]}',
    id, rows, #numbers, table.concat(numbers, ","))
end

local function post()
  local id = hex(32)
  return wrk.format("POST", "/v2/models/resnet/infer", {
    ["Host"] = "resnet.localhost",
    ["User-Agent"] = "bench/1.0",
    ["Accept"] = "application/json",
    ["Accept-Encoding"] = "gzip, deflate",
    ["Content-Type"] = "application/json",
    ["Authorization"] = "Bearer " .. hex(40),
    ["X-Request-Id"] = id,
    ["traceparent"] = "00-" .. hex(32) .. "-" .. hex(16) .. "-01",
  }, body(id))
end

function init(args)
  kind = args[1] or kind
  math.randomseed(42)
  if kind == "get" then
    variants[1] = wrk.format("GET", "/")
  else
    for i = 1, 1000 do variants[i] = post() end
  end
end

function request()
  at = at % #variants + 1
  return variants[at]
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "errors": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
