import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.http.HttpHost;
import org.apache.http.util.EntityUtils;
import org.elasticsearch.client.Node;
import org.elasticsearch.client.Request;
import org.elasticsearch.client.Response;
import org.elasticsearch.client.ResponseException;
import org.elasticsearch.client.RestClient;
import org.elasticsearch.client.sniff.Sniffer;

/**
 * Runs the low-level Java client, with its sniffer, through the calls that applications make most, and checks each answer:
 * java -cp ... Suite BASE_URL
 *
 * First it waits until the sniffer has looked for the cluster's nodes. It prints one line of JSON with what was seen, the
 * addresses to which the client then sends included, and ends with 1 and the reason on standard error at the first
 * mismatch. It is for this client what suite.py and suite.js are for the others.
 */
public class Suite {
    static final int BULK = 500;
    static RestClient client;

    static void check(String what, Object got, Object want) {
        if (!got.equals(want)) throw new AssertionError(what + ": got " + got + ", want " + want);
    }

    static String send(String method, String target, String body) throws Exception {
        Request request = new Request(method, target);
        if (body != null) request.setJsonEntity(body);
        Response response = client.performRequest(request);
        return response.getEntity() == null ? "" : EntityUtils.toString(response.getEntity());
    }

    static void fails(String what, int status, String type, String method, String target, String body) throws Exception {
        try {
            throw new AssertionError(what + ": got " + send(method, target, body) + ", want status " + status);
        } catch (ResponseException e) {
            check(what, e.getResponse().getStatusLine().getStatusCode(), status);
            String answer = EntityUtils.toString(e.getResponse().getEntity());
            if (!answer.contains("\"type\":\"" + type + "\"")) throw new AssertionError(what + ": " + answer + " lacks " + type);
        }
    }

    /** Returns the first group of each match. */
    static List<String> find(String text, String pattern) {
        List<String> found = new ArrayList<>();
        for (Matcher m = Pattern.compile(pattern).matcher(text); m.find();) found.add(m.group(1));
        return found;
    }

    static String run(String index) throws Exception {
        send("PUT", "/" + index, "{\"settings\":{\"number_of_shards\":1,\"number_of_replicas\":0}," +
            "\"mappings\":{\"properties\":{\"kind\":{\"type\":\"keyword\"},\"n\":{\"type\":\"integer\"}}}}");
        String odd = "a%2Fb%20c%2Bd%2525%C3%A9"; // each character breaks when a path is decoded or encoded once too often
        check("index", find(send("PUT", "/" + index + "/_doc/" + odd + "?refresh=true", "{\"kind\":\"single\",\"n\":-1}"), "\"result\":\"(\\w+)\""), List.of("created"));
        check("get", find(send("GET", "/" + index + "/_doc/" + odd, null), "\"_id\":\"([^\"]*)\""), List.of("a/b c+d%25\u00e9"));
        check("head", client.performRequest(new Request("HEAD", "/" + index + "/_doc/" + odd)).getStatusLine().getStatusCode(), 200);

        StringBuilder bulk = new StringBuilder();
        for (int n = 0; n < BULK; n++) {
            bulk.append("{\"index\":{\"_id\":\"" + n + "\"}}\n{\"kind\":\"k" + n % 5 + "\",\"n\":" + n + "}\n");
        }
        String written = send("POST", "/" + index + "/_bulk?refresh=true", bulk.toString());
        check("bulk", find(written, "\"errors\":(\\w+)"), List.of("false"));
        int created = find(written, "\"result\":\"(created)\"").size();
        int count = Integer.parseInt(find(send("GET", "/" + index + "/_count", null), "\"count\":(\\d+)").get(0));
        check("count", count, BULK + 1);

        // A GET with a body, as this client allows.
        String found = send("GET", "/" + index + "/_search", "{\"query\":{\"term\":{\"kind\":\"k3\"}},\"sort\":[{\"n\":\"desc\"}],\"size\":3}");
        List<String> hits = find(found, "\"_source\":\\{\"kind\":\"k3\",\"n\":(\\d+)\\}");
        check("search", hits, List.of("498", "493", "488"));

        TreeSet<Integer> scrolled = new TreeSet<>();
        String page = send("POST", "/" + index + "/_search?scroll=1m", "{\"size\":150}"), id;
        for (;;) {
            List<String> documents = find(page, "\"_source\":\\{[^}]*\"n\":(-?\\d+)\\}");
            id = find(page, "\"_scroll_id\":\"([^\"]+)\"").get(0);
            if (documents.isEmpty()) break;
            for (String n : documents) scrolled.add(Integer.valueOf(n));
            page = send("POST", "/_search/scroll", "{\"scroll\":\"1m\",\"scroll_id\":\"" + id + "\"}");
        }
        send("DELETE", "/_search/scroll", "{\"scroll_id\":[\"" + id + "\"]}");

        fails("search in a missing index", 404, "index_not_found_exception", "GET", "/" + index + "-missing/_search", null);
        fails("search that cannot be parsed", 400, "parsing_exception", "POST", "/" + index + "/_search", "{\"query\":{\"no_such_query\":{}}}");
        return "\"indexed\":1,\"bulk\":" + created + ",\"count\":" + count + ",\"hits\":" + hits.size() + ",\"scrolled\":" + scrolled.size();
    }

    public static void main(String[] args) throws Exception {
        client = RestClient.builder(HttpHost.create(args[0])).build();
        List<Node> configured = client.getNodes();
        // What the sniffer finds replaces the list, so that another list is there once it has looked.
        Sniffer sniffer = Sniffer.builder(client).setSniffIntervalMillis(100).build();
        String index = "clients-java-" + ProcessHandle.current().pid();
        int status = 0;
        try {
            for (long end = System.nanoTime() + 20_000_000_000L; client.getNodes() == configured || client.getNodes().get(0).getVersion() == null;) {
                if (System.nanoTime() > end) throw new AssertionError("the sniffer found nothing: " + client.getNodes());
                Thread.sleep(20);
            }
            String seen = run(index);
            TreeSet<String> nodes = new TreeSet<>();
            for (Node node : client.getNodes()) nodes.add("\"" + node.getHost().toHostString() + "\"");
            System.out.println("{\"client\":\"java/low-level with sniffer\",\"version\":\"" + RestClient.class.getPackage().getImplementationVersion() + "\","
                + seen + ",\"nodes\":[" + String.join(",", nodes) + "]}");
        } catch (Throwable e) {
            e.printStackTrace();
            status = 1;
        } finally {
            Request delete = new Request("DELETE", "/" + index);
            delete.addParameter("ignore", "404");
            try {
                client.performRequest(delete);
            } finally {
                sniffer.close();
                client.close();
            }
        }
        System.exit(status);
    }
}
